"""What an exported step costs: memory, a budget for it, operators, bytes on the wire."""
