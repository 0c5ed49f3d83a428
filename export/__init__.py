"""Offline: the training step -> an artifact directory that mobile runtimes train with."""
