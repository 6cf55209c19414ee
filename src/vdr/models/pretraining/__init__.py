"""How the mini backbone learns to read pages from nothing: first its vision tower, then its language tower."""
