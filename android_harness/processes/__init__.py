"""Child processes and locks that outlive nobody."""
