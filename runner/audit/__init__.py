"""The audit: a tree of hashes over what was asked, voted, decided and used, signed, and verified offline."""
