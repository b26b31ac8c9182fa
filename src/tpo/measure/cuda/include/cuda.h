// What generated code includes for the driver's interface, and everything else CUDA has without being asked.
#pragma once

#include "cuda_language.h"
