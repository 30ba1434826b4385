"""Bounds of one softmax row by published relaxations, which the demonstration compares with ours."""
