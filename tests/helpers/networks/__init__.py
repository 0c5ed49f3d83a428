"""Networks and operators that exports are tried on."""
