"""What several test suites stand on."""
