"""The client for stock ONNX Runtime: a Python program that travels in its own bundle, with the verbs of `fedss-client`.

    __main__.py    the command line, and what becomes of errors
    replay.py      a conversation whose answers lie in a folder
    bench.py       timed steps on made-up examples

In the bundle it lies beside the packages `ondevice`, `numpy` and `onnxruntime`; there is no torch.
"""
