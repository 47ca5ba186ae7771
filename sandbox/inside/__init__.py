"""What runs inside a boundary: supervisor, zygote, program. Standard library only, imported by nothing outside."""
