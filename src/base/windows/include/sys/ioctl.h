#include "base/windows/sockets.h" /* the header of this name that Windows lacks */
