"""The command line: each verb parses, calls one workflow and prints what it returns."""
