"""The instruments that study the kernels: what the compiler made of them, how long they take, and why.

Importing this package loads neither torch nor Triton; its modules load what they need when they are used.
The instruments import the operators. The operators never import an instrument.
"""
