"""The demo: an emulated video host and model with every fault, and videos to try."""
