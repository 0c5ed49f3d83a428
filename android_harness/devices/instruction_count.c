/* A qemu plugin that counts the guest instructions a program executes and writes the number to the file named by
 * the plugin argument `out=`.  Wall time under emulation says nothing about a phone; instructions do.
 *
 * Debian packages no header for plugins, so the few prototypes used are declared here, in qemu's version 1 of the
 * interface.  The counter is incremented inline by translated code, without atomics: exact for one guest thread;
 * with several some increments are lost.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
enum { QEMU_PLUGIN_INLINE_ADD_U64 = 0 };

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb*));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb*);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb*, int op, void* counter, uint64_t add);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void*), void*);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

static uint64_t instructions;
static char out[4096];

static void on_translate(qemu_plugin_id_t id, struct qemu_plugin_tb* block) {
  (void)id;
  size_t size = qemu_plugin_tb_n_insns(block);
  qemu_plugin_register_vcpu_tb_exec_inline(block, QEMU_PLUGIN_INLINE_ADD_U64, &instructions, size);
}

static void on_exit_of_guest(qemu_plugin_id_t id, void* unused) {
  (void)id, (void)unused;
  FILE* file = fopen(out, "w");
  if (!file) return;
  fprintf(file, "%" PRIu64 "\n", instructions);
  fclose(file);
}

__attribute__((visibility("default"))) int qemu_plugin_install(
    qemu_plugin_id_t id, const void* info, int argc, char** argv) {
  (void)info;
  if (argc != 1 || strncmp(argv[0], "out=", 4) != 0 || strlen(argv[0] + 4) >= sizeof out) return -1;
  strcpy(out, argv[0] + 4);
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
  qemu_plugin_register_atexit_cb(id, on_exit_of_guest, NULL);
  return 0;
}
