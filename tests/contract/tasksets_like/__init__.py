"""A minimal stand-in of the package verifiers since 0.4, whose root has nothing."""
