"""What this processor offers, asked without running an optional instruction.

Compiled for the baseline only. On x86, CPUID says what the processor has and XGETBV whether the operating system
saves the wide registers: a feature counts only when both agree. On 64-bit Arm, Linux answers in the auxiliary
vector. Elsewhere nothing is claimed and the portable kernels run.

The readers of the raw bits differ per machine; the decoders are plain functions that exist everywhere, so that
every machine can test all of them.
"""

cdef extern from *:
    """
    #if defined(__x86_64__) || defined(__i386__)
      #include <cpuid.h>
      static int fucina_cpuid(unsigned leaf, unsigned sub, unsigned *r) {
          return __get_cpuid_count(leaf, sub, &r[0], &r[1], &r[2], &r[3]);
      }
      /* Legal only when CPUID reports OSXSAVE. Written as bytes for assemblers that do not know the name. */
      static unsigned fucina_xcr0(void) {
          unsigned low, high;
          __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(low), "=d"(high) : "c"(0));
          return low;
      }
    #else
      static int fucina_cpuid(unsigned leaf, unsigned sub, unsigned *r) { return 0; }
      static unsigned fucina_xcr0(void) { return 0; }
    #endif

    #if defined(__aarch64__) && defined(__linux__)
      #include <sys/auxv.h>
      static unsigned long fucina_hwcap(int which) { return getauxval(which == 2 ? AT_HWCAP2 : AT_HWCAP); }
    #elif defined(__aarch64__)
      /* No portable question outside Linux, but Advanced SIMD is part of the architecture. */
      static unsigned long fucina_hwcap(int which) { return which == 2 ? 0 : 2; }
    #else
      static unsigned long fucina_hwcap(int which) { return 0; }
    #endif
    """
    int fucina_cpuid(unsigned leaf, unsigned sub, unsigned *registers)
    unsigned fucina_xcr0()
    unsigned long fucina_hwcap(int which)


# name, (CPUID word, bit), XCR0 bits that the operating system must have set.
_YMM = 0x06  # SSE and AVX state
_ZMM = 0xE6  # and the mask registers and both halves of the 512-bit state
_X86 = (
    ("fma", "1.ecx", 12, _YMM),
    ("avx", "1.ecx", 28, _YMM),
    ("f16c", "1.ecx", 29, _YMM),
    ("bmi1", "7.ebx", 3, 0),
    ("avx2", "7.ebx", 5, _YMM),
    ("bmi2", "7.ebx", 8, 0),
    ("avx512f", "7.ebx", 16, _ZMM),
    ("avx512dq", "7.ebx", 17, _ZMM),
    ("avx512cd", "7.ebx", 28, _ZMM),
    ("avx512bw", "7.ebx", 30, _ZMM),
    ("avx512vl", "7.ebx", 31, _ZMM),
    ("avx512vnni", "7.ecx", 11, _ZMM),
    ("avxvnni", "7.1.eax", 4, _YMM),
    ("avx512bf16", "7.1.eax", 5, _ZMM),
)
_OSXSAVE = 27

# name, auxiliary word, bit.
_ARM = (
    ("asimd", 1, 1),
    ("atomics", 1, 8),
    ("asimdhp", 1, 10),
    ("asimddp", 1, 20),
    ("sve", 1, 22),
    ("i8mm", 2, 13),
    ("bf16", 2, 14),
)


def decode_x86(dict words, unsigned xcr0):
    """Names of the usable features in the CPUID words ``{"1.ecx": …, "7.ebx": …, …}`` under this XCR0."""
    return frozenset(
        name for name, word, bit, state in _X86 if words.get(word, 0) >> bit & 1 and xcr0 & state == state
    )


def decode_arm(hwcap, hwcap2):
    """Names of the features in the two words of the auxiliary vector."""
    words = {1: hwcap, 2: hwcap2}
    return frozenset(name for name, word, bit in _ARM if words[word] >> bit & 1)


def cpu_features():
    """CPU features that may be used, by the names of ``/proc/cpuinfo`` without underscores.

    Returns
    -------
    frozenset of str
        Empty where the question cannot be asked.

    Notes
    -----
    Intel SDM volume 2A, CPUID leaves 1 and 7; volume 1, chapter 13 (XCR0). Arm: ``getauxval(AT_HWCAP)``.
    """
    cdef unsigned r[4]
    words = {}
    xcr0 = 0
    if fucina_cpuid(1, 0, r):
        words["1.ecx"] = r[2]
        if r[2] >> _OSXSAVE & 1:
            xcr0 = fucina_xcr0()
        if fucina_cpuid(7, 0, r):
            words["7.ebx"] = r[1]
            words["7.ecx"] = r[2]
            if r[0] >= 1 and fucina_cpuid(7, 1, r):
                words["7.1.eax"] = r[0]
    return decode_x86(words, xcr0) | decode_arm(fucina_hwcap(1), fucina_hwcap(2))
