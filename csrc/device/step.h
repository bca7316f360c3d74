#pragma once

#if defined(__CUDACC__)
#define KVPLAN_STEP __device__
#else
#define KVPLAN_STEP
#endif
