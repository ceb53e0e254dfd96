#pragma once

#include <cstdint>

namespace reshard::pickle {

/// Every opcode of protocols 0 to 5, by the names of Python's pickletools. (Names that are C++ words carry a suffix.)
enum class Op : std::uint8_t {
  mark = '(', stop = '.', pop = '0', pop_mark = '1', dup = '2',
  float_text = 'F', int_text = 'I', binint = 'J', binint1 = 'K', long_text = 'L', binint2 = 'M', binfloat = 'G',
  none = 'N', persid = 'P', binpersid = 'Q',
  string = 'S', binstring = 'T', short_binstring = 'U', unicode = 'V', binunicode = 'X', binbytes = 'B', short_binbytes = 'C',
  append = 'a', appends = 'e', list = 'l', empty_list = ']',
  dict = 'd', empty_dict = '}', setitem = 's', setitems = 'u',
  tuple = 't', empty_tuple = ')', tuple1 = 0x85, tuple2 = 0x86, tuple3 = 0x87,
  get = 'g', binget = 'h', long_binget = 'j', put = 'p', binput = 'q', long_binput = 'r', memoize = 0x94,
  global = 'c', stack_global = 0x93, reduce = 'R', build = 'b', inst = 'i', obj = 'o', newobj = 0x81, newobj_ex = 0x92,
  proto = 0x80, frame = 0x95, ext1 = 0x82, ext2 = 0x83, ext4 = 0x84,
  newtrue = 0x88, newfalse = 0x89, long1 = 0x8a, long4 = 0x8b,
  short_binunicode = 0x8c, binunicode8 = 0x8d, binbytes8 = 0x8e, bytearray8 = 0x96, next_buffer = 0x97, readonly_buffer = 0x98,
  empty_set = 0x8f, additems = 0x90, frozenset = 0x91,
};

}  // namespace reshard::pickle
