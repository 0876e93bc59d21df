"""Hands: the steps of the walk that touch the world. Rules are in `policy`, memory is in `store`."""
