"""Disassembly of machine code by capstone, an optional library that `capstone_loader` loads."""
