"""Studies of what XLA compiles for a GPU; they run without one."""
