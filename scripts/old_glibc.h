/* Included before every C file of a wheel: asks for the oldest glibc's symbols, which every newer glibc has too. */
#include <features.h>
#if defined(__x86_64__)
__asm__(".symver log, log@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver log, log@GLIBC_2.17");
#endif
