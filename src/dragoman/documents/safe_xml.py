"""XML from strangers: no entities, no external references, bounded depth. Keeps comments and white space."""

from lxml import etree

from dragoman.errors import DataError


def parse_xml(content: bytes, name: str) -> etree._ElementTree:
    """Parse a file's content; `name` is for messages. A document type that declares entities is refused."""
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False, strip_cdata=False, remove_pis=False
    )
    try:
        tree = etree.fromstring(content, parser).getroottree()
    except etree.XMLSyntaxError as error:
        problem = " ".join(str(error.msg).split())  # some have a newline within
        raise DataError(f"{name}: invalid XML ({problem}); fix the file") from None
    declarations = tree.docinfo.internalDTD
    if declarations is not None and any(True for _ in declarations.iterentities()):
        raise DataError(f"{name}: declares XML entities, which can hide anything; remove them from its DOCTYPE")
    return tree
