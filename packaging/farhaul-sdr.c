/* libfarhaul-sdr.so is made of the rooms' static libraries; a shared library needs a source of its own. */
extern const char farhaul_sdr_version[];
const char farhaul_sdr_version[] = "farhaul-sdr " FARHAUL_VERSION; /* for strings(1) */
