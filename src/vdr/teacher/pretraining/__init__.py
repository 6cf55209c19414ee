"""How the mini teacher learns to judge: pages and queries of its own split, with the world's truth."""
