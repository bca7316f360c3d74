#pragma once

// Symbols are hidden by default; what the headers declare for users is marked with KVPLAN_API.
#if defined(_WIN32)
#define KVPLAN_API
#else
#define KVPLAN_API __attribute__((visibility("default")))
#endif
