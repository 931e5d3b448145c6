"""A small server in Strata's names, written for the tests of the patch. It is copied and run elsewhere."""
