/*
 * Reaches AES-GCM of Intel's Multi-Buffer Crypto for IPsec library. What a key is, and where its functions for this processor
 * are found, only the header of the installed release knows.
 */
#include <intel-ipsec-mb.h>
#include <stdint.h>

/* A key. Read by as many threads as there are, once it is made. The library is built for keys that begin a cache line. */
struct fatpath_gcm {
    _Alignas(64) struct gcm_key_data data;
    aes_gcm_enc_dec_t seal, open;
    aes_gcm_init_t begin;
    aes_gcm_enc_dec_update_t go_on;
    aes_gcm_enc_dec_finalize_t end;
};

const size_t fatpath_gcm_size = sizeof(struct fatpath_gcm);
const size_t fatpath_gcm_align = _Alignof(struct fatpath_gcm);

/*
 * The library's functions for this processor. NULL if there are none, or they fail their test of themselves, or the library is
 * of another release than the header: a key of that may be larger, though the dynamic linker takes the one for the other.
 * Freed by nobody.
 */
const void *fatpath_gcm_functions(void)
{
    IMB_MGR *functions;
    if (imb_get_version() != IMB_VERSION_NUM || (functions = alloc_mb_mgr(0)) == NULL)
        return NULL;
    init_mb_mgr_auto(functions, NULL);
    if (imb_get_errno(functions) == 0)
        return functions;
    free_mb_mgr(functions);
    return NULL;
}

/* Whether they are those with vectors of 512 bits, for AES and for GHASH. */
int fatpath_gcm_is_wide(const void *of)
{
    const IMB_MGR *functions = of;
    return (functions->features & IMB_CPUFLAGS_AVX512_T2) == IMB_CPUFLAGS_AVX512_T2;
}

/* Makes a key from one of 16, 24 or 32 bytes. */
void fatpath_gcm_new(const void *of, struct fatpath_gcm *gcm, const uint8_t *key, size_t key_len)
{
    const IMB_MGR *functions = of;
#define TAKE(BITS)                                      \
    do {                                                \
        functions->gcm##BITS##_pre(key, &gcm->data);    \
        gcm->seal = functions->gcm##BITS##_enc;         \
        gcm->open = functions->gcm##BITS##_dec;         \
        gcm->begin = functions->gcm##BITS##_init;       \
        gcm->go_on = functions->gcm##BITS##_enc_update; \
        gcm->end = functions->gcm##BITS##_enc_finalize; \
    } while (0)
    switch (key_len) {
    case 16: TAKE(128); break;
    case 24: TAKE(192); break;
    default: TAKE(256); break;
    }
#undef TAKE
}

/* Encrypts `len` bytes where they lie, and makes the first `tag_len` bytes of their tag: 8, 12 or 16. */
void fatpath_gcm_seal(const struct fatpath_gcm *gcm, uint8_t *text, size_t len, const uint8_t *nonce, const uint8_t *aad,
                      size_t aad_len, uint8_t *tag, size_t tag_len)
{
    struct gcm_context_data context;
    gcm->seal(&gcm->data, &context, text, text, len, nonce, aad, aad_len, tag, tag_len);
}

/* The same for a text and a trailer that lie elsewhere, the one to be put in front of the other. */
void fatpath_gcm_seal_from(const struct fatpath_gcm *gcm, uint8_t *to, const uint8_t *text, size_t len,
                           const uint8_t *trailer, size_t trailer_len, const uint8_t *nonce, const uint8_t *aad,
                           size_t aad_len, uint8_t *tag, size_t tag_len)
{
    struct gcm_context_data context;
    gcm->begin(&gcm->data, &context, nonce, aad, aad_len);
    gcm->go_on(&gcm->data, &context, to, text, len);
    gcm->go_on(&gcm->data, &context, to + len, trailer, trailer_len);
    gcm->end(&gcm->data, &context, tag, tag_len);
}

/* Decrypts `len` bytes where they lie, and makes the 16 bytes of the tag that they ought to have. */
void fatpath_gcm_open(const struct fatpath_gcm *gcm, uint8_t *text, size_t len, const uint8_t *nonce, const uint8_t *aad,
                      size_t aad_len, uint8_t *tag)
{
    struct gcm_context_data context;
    gcm->open(&gcm->data, &context, text, text, len, nonce, aad, aad_len, tag, 16);
}
