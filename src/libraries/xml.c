#include "libraries/stubs.h"

/* clang-format off */
#define FUNCTIONS(F) \
    F(xmlDictSetLimit) F(xmlFreeTextReader) F(xmlReaderForMemory) F(xmlTextReaderConstLocalName) \
    F(xmlTextReaderConstValue) F(xmlTextReaderCurrentNode) F(xmlTextReaderIsEmptyElement) \
    F(xmlTextReaderMoveToElement) F(xmlTextReaderMoveToFirstAttribute) F(xmlTextReaderMoveToNextAttribute) \
    F(xmlTextReaderNext) F(xmlTextReaderNodeType) F(xmlTextReaderRead)
/* clang-format on */

TN_LOADED(tn_loaded_xml, TN_SO_XML, "libxml2", "office documents and books")
