"""What an engine makes of layers and a GPU: pages, pools, budgets. One file or folder per engine."""
