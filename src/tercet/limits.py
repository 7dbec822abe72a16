"""How much is believed of what a file, a folder or a request says of itself: the one list of bounds.

Whoever reads bytes that someone else may have written asks here before it allocates, loops or opens. A bound is far
above what honest files have and far below what hurts a laptop; where one is met, the message names it.
"""
