"""What tests share: real processes of every kind, and the tools that speak to them."""
