"""ONNX Runtime: the traced graph in standard operators, and the official training artifacts."""
