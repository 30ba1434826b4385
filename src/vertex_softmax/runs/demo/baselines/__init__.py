"""Bounds of one softmax row by other published relaxations, which the demonstration shows beside ours."""
