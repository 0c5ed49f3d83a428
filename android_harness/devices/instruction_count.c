/* A qemu plugin that counts the guest instructions a program executes and writes the number to the file named by
 * the plugin argument `out=`.  Wall time under emulation says nothing about a phone; instructions do.
 *
 * A program that wants to know where they go marks places with `hint #127`, which means nothing to a processor: the
 * count at every mark is written too, a line each (ondevice/native/runtime/profiler.h).
 *
 * Debian packages no header for plugins, so the few prototypes used are declared here, in qemu's version 1 of the
 * interface.  The counter is incremented inline by translated code, without atomics: exact for one guest thread;
 * with several some increments are lost.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { QEMU_PLUGIN_INLINE_ADD_U64 = 0, QEMU_PLUGIN_CB_NO_REGS = 0 };

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb*));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb*);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb*, int op, void* counter, uint64_t add);
struct qemu_plugin_insn* qemu_plugin_tb_get_insn(const struct qemu_plugin_tb*, size_t);
const void* qemu_plugin_insn_data(const struct qemu_plugin_insn*);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn*);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn*, void (*)(unsigned int, void*), int flags, void*);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void*), void*);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

static uint64_t instructions;
static char out[4096];

enum { MARK = 0xd5032fff, MOST_MARKS = 1 << 22 };
static uint64_t* marks;
static size_t num_marks, room_for_marks;

/* The counter is already where the block ends: `rest` instructions further. */
static void on_mark(unsigned int processor, void* rest) {
  (void)processor;
  if (num_marks == room_for_marks) {
    const size_t room = room_for_marks ? 2 * room_for_marks : 4096;
    uint64_t* grown = room > MOST_MARKS ? NULL : realloc(marks, room * sizeof *marks);
    if (!grown) return;
    marks = grown;
    room_for_marks = room;
  }
  marks[num_marks++] = instructions - (uintptr_t)rest;
}

static void on_translate(qemu_plugin_id_t id, struct qemu_plugin_tb* block) {
  (void)id;
  size_t size = qemu_plugin_tb_n_insns(block);
  qemu_plugin_register_vcpu_tb_exec_inline(block, QEMU_PLUGIN_INLINE_ADD_U64, &instructions, size);
  for (size_t i = 0; i < size; i++) {
    struct qemu_plugin_insn* instruction = qemu_plugin_tb_get_insn(block, i);
    uint32_t word = 0;
    if (qemu_plugin_insn_size(instruction) == sizeof word)
      memcpy(&word, qemu_plugin_insn_data(instruction), sizeof word);
    if (word == MARK)
      qemu_plugin_register_vcpu_insn_exec_cb(
          instruction, on_mark, QEMU_PLUGIN_CB_NO_REGS, (void*)(uintptr_t)(size - 1 - i));
  }
}

static void on_exit_of_guest(qemu_plugin_id_t id, void* unused) {
  (void)id, (void)unused;
  FILE* file = fopen(out, "w");
  if (!file) return;
  fprintf(file, "%" PRIu64 "\n", instructions);
  for (size_t i = 0; i < num_marks; i++) fprintf(file, "%" PRIu64 "\n", marks[i]);
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
