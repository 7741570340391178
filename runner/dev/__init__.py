"""An embedded Redis or Valkey server for development and tests."""
