"""Training of one student: rows, batches, the loop with its checkpoints, and the child process that runs it."""
