"""ExecuTorch: the traced graph rewritten to the operators of `ondevice/native`."""
