"""ONNX models as modules of PyTorch's: read, made static where sizes are given, and converted by onnx2pytorch.

``pip install "torchipu[onnx]"`` brings what it needs. `torchipu.from_onnx` is the door.
"""
