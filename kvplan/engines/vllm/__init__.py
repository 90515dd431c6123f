"""vLLM: how it pages layers, which defaults it takes, and where a GPU's memory goes."""
