"""What a step costs: time, memory, instructions, temperature; measured here and on devices, as rows."""
