import pytest

pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed: pip install 'torchipu[geometric]'")
