"""The training step in torch: extractors, objectives, and the module that is traced."""
