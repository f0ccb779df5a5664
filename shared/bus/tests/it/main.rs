//! The bus against a real server.
