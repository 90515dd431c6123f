"""kvplan: how much work can this model take on these GPUs, and what happens when more arrives?"""

__version__ = "0.1.0"
