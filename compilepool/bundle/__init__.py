"""Bundles: results of the pool in one verified file, for hosts with the same toolchain.

What is in them is for programs with the same compile settings: the same Triton and Inductor variables.
"""
