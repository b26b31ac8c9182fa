// Dot products of bytes: the one that is part of the language is in cuda_language.h.
#pragma once

#include "cuda_language.h"
