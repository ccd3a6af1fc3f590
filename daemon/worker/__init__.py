"""The compiling side: runs in the client's interpreter and uid; the only code here that imports torch and triton."""
