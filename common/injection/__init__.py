"""System calls that another process is made to make, and clones of processes made by them."""
