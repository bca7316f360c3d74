int engine_blocks();

int main() { return engine_blocks() == 7 ? 0 : 1; }
