#include "distributed/whole.hpp"
