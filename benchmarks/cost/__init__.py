"""Studies of what optimizers cost: time, operations, bytes and compilation."""
