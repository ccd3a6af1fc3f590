"""Bundles: results of the pool in one verified file, for hosts with the same toolchain."""
